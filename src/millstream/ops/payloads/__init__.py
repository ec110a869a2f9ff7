"""Payloads of entries: decoding, comparing and editing. PURE."""
