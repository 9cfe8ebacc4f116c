"""The protocol of DeepL, for its clients: /v2/translate, /v2/languages and /v2/usage."""
