"""What tools read of a verdict: SARIF, and the annotations of GitHub Actions."""
