"""The data model and every change to it. PURE: no I/O, no clock, no random source, no other part of Millstream."""
