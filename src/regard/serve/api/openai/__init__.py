"""OpenAI's protocol, as its clients speak it: completions, chats, embeddings, and the list of models."""
