"""The engine on Spark: the tasks of the local engine, done by executors. Nothing here changes a result."""
