"""The protocol of LibreTranslate, for its clients: /translate, /languages, /detect and /frontend/settings."""
