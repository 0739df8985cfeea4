"""Sources that models are downloaded from (the hub, buckets), into folders that are marked when
they are whole; and the reader of the JSON objects in these folders."""
