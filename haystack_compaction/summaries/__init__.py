"""
What a summariser is shown, how it is asked, and what becomes of its answer.
"""
