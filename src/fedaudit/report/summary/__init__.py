"""The summary of a record: one page that can be filed, as HTML and as Markdown."""
