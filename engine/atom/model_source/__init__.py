"""Where models are downloaded from (the hub, buckets), and folders that are whole or not marked."""
