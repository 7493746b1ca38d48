"""From a captioned video to files: subtitles, chapters, tables, a page, a copy with chapters."""
