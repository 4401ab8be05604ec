"""Text as tokens: files of tokens, how they are made, and the order in which a run reads them."""
