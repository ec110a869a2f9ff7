"""Workers: their state, and orders to them."""
