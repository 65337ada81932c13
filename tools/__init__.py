"""Programs for those who work on this repository; none is part of the package."""
