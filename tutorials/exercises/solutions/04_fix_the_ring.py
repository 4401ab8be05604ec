"""Exercise 4: even devices send first, odd ones receive first; two even neighbours do no harm."""


# USER CODE BEGIN
def order(rank, n, send, receive):
    return [send, receive] if rank % 2 == 0 else [receive, send]


# USER CODE END
