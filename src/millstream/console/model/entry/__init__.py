"""What follows about single entries: where one stands in each group, which ones are missing. PURE."""
