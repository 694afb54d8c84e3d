"""Chats: messages, templates, and which tokens the loss counts."""
