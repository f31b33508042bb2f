"""Serve voices over HTTP and the Wyoming protocol.

    tacotron2-voice serve voices/english

- command: loads the voices and starts the servers
- options: command-line options
- limits: limits on queue length, text length and waiting times
- connections: sockets and connection timeouts
- app: routes, access checks and the web demo (page.html)
- openai_api: the OpenAI speech API
- speakers: selects the voice and the speaker for a request
- wyoming_server: the Wyoming protocol, which Home Assistant uses
- workers: synthesis threads and the bounded queue
- encoding: audio formats
- metrics: counters for Prometheus

The extra `server` installs the packages for HTTP, and the extra `wyoming` installs the packages for
the Wyoming protocol.
"""
