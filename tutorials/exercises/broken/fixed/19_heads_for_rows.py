def there(rank, member):
    """Return (rows, heads): the piece that device `rank` sends to `member` before attention."""
    return rank, member


def back(rank, member):
    """Return (rows, heads): the piece that device `rank` sends to `member` after attention."""
    return member, rank
