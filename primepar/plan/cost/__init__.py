"""The cost model: time and memory of operators and redistributions, from maps and layouts."""
