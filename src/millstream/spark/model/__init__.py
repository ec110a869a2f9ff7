"""What is decided from values alone: offsets, claims, schemas, key names. PURE."""
