"""Words for people and for browsers.

table      columns on a terminal
html_page  a page without scripts
shortlist  the first few of many
"""
