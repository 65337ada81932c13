"""The report: one self-contained HTML file that shows a person what a run did and what it is worth.

`ReportData` holds everything that is shown, `render_report` turns it into text. Nothing here reads
or writes a file of a run.
"""
