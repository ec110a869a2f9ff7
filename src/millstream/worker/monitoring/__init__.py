"""What those see who watch a worker: the health endpoint, Prometheus metrics, figures of groups."""
