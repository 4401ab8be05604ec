"""Exercise 11: the chunk whose next use is furthest away; one that is never read again first."""


# USER CODE BEGIN
def evict(here, later):
    return max(here, key=lambda chunk: later.index(chunk) if chunk in later else len(later))


# USER CODE END
