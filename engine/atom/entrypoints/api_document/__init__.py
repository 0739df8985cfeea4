"""What the OpenAPI document says in words, and the page that shows it."""
