"""What a provider's webhook means: body, event, signature, filters and tokens (S9), as values."""
