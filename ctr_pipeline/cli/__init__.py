"""The command line: plain arguments in, an exit code out; it alone prints and exits."""
