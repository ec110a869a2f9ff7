"""From a URL to any server that speaks Redis Streams; never imports the engine, the worker, Spark or a screen."""
