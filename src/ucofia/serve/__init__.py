"""The page and the HTTP API of an index; `app.create_app` puts the parts together."""
