"""The way of pages to a browser: ``guard`` lets requests in, ``app`` makes answers, ``process`` listens."""
