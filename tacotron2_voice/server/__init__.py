"""Serve voices over HTTP and the Wyoming protocol.

    tacotron2-voice serve voices/english

- command: options, and the start of the servers
- options, limits: the options, and the limits of a server
- connections: sockets, and timeouts of connections
- app: routes, checks of requests, the web demo (page.html)
- openai_api: OpenAI's API for speech
- speakers: the voice and the speaker of a request
- wyoming_server: the protocol of Home Assistant
- workers: the threads that synthesize, and the limited queue
- encoding: audio formats
- metrics: counters for Prometheus

The extra `server` installs the packages for HTTP, and the extra `wyoming` the package for Wyoming.
"""
