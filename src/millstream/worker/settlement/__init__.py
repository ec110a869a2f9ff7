"""What becomes of an entry, stored in the server: acks, dead letters, failure records, leases; all fenced."""
