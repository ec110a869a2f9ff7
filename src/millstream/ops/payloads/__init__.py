"""Values of entries, decoded, compared and edited. PURE."""
