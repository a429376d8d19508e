// Which addresses are the public internet's: what a server may be sent to by a stranger.
#pragma once

#include <sys/socket.h>

namespace lapidary {

// False of addresses that mean this machine, its networks, a provider's inside, documentation,
// multicast, or another address in disguise (mapped and tunnelled IPv4).
bool IsPublicAddress(const sockaddr& address);

}  // namespace lapidary
