"""The program itself: the year of flights, who publishes it, what its rules are, and what Spark makes of it."""
