"""The gateway: the only way to a served model for those who hold no cluster credentials.

One process in front of one OpenAI-compatible engine (vLLM, Ray Serve LLM). It knows who asks, which adapter
answers the public name at the moment, how much may be asked, and when the engine must not mix requests.
"""
