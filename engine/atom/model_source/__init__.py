"""Sources that models are downloaded from (the hub, buckets), into folders that are marked when
they are whole; and readers of the JSON objects and token ids in these folders."""
