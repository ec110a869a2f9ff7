"""What a person sees of streams, groups and pending entries; reaches a server only through ``millstream.client``."""
