"""Exercise 9: transfers as stretches of time that do not overlap, cut by the products."""


# USER CODE BEGIN
def hidden(events):
    def stretches(track):
        busy = []
        for event in sorted(events, key=lambda event: event.start):
            if event.track != track or event.op == "wait":
                continue
            if busy and event.start <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], event.end)
            else:
                busy.append([event.start, event.end])
        return busy

    moves, products = stretches("communication"), stretches("compute")
    moving = sum(end - start for start, end in moves)
    both = sum(
        max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
        for one in moves
        for other in products
    )
    return moving, both


# USER CODE END
