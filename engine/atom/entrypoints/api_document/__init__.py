"""The page that shows the OpenAPI document."""
