"""What crashed workers left pending, settled by a rule or a user's function over a DataFrame."""
