"""Sources that models are downloaded from (the hub, buckets), into folders that are marked when
they are whole."""
