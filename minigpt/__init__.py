"""The thing under observation: a small GPT that yields one record a step."""
