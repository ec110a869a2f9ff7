"""What is wrong with this machine, a data directory or a server: findings with a next step."""
