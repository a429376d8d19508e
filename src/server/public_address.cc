#include "server/public_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace lapidary {
namespace {

// IANA's registry of special-purpose addresses, but for those that are reachable from anywhere.
struct Range4 {
  uint32_t first;
  int bits;
};
constexpr Range4 kSpecial4[] = {
    {0x00000000, 8},   // this network
    {0x0A000000, 8},   // private
    {0x64400000, 10},  // shared by a provider's customers
    {0x7F000000, 8},   // this machine
    {0xA9FE0000, 16},  // link-local, and where clouds serve credentials
    {0xAC100000, 12},  // private
    {0xC0000000, 24},  // protocol assignments
    {0xC0000200, 24},  // documentation
    {0xC0586300, 24},  // 6to4 relays
    {0xC0A80000, 16},  // private
    {0xC6120000, 15},  // benchmarks
    {0xC6336400, 24},  // documentation
    {0xCB007100, 24},  // documentation
    {0xE0000000, 3},   // multicast, reserved, broadcast
};

// Of what is given out to networks (2000::/3), the parts that are none.
struct Range6 {
  uint8_t first[4];
  int bits;
};
constexpr Range6 kSpecial6[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23},  // protocol assignments, Teredo among them
    {{0x20, 0x01, 0x0D, 0xB8}, 32},  // documentation
    {{0x20, 0x02, 0x00, 0x00}, 16},  // 6to4: an IPv4 address inside
    {{0x3F, 0xFF, 0x00, 0x00}, 20},  // documentation
};

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

bool HasPrefix(uint32_t value, uint32_t first, int bits) {
  return ((value ^ first) >> (32 - bits)) == 0;
}

}  // namespace

bool IsPublicAddress(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof(v4));
    const uint32_t value = ntohl(v4.sin_addr.s_addr);
    return std::none_of(std::begin(kSpecial4), std::end(kSpecial4), [&](const Range4& range) {
      return HasPrefix(value, range.first, range.bits);
    });
  }
  if (address.sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address, sizeof(v6));
    const uint32_t value = BigEndian(v6.sin6_addr.s6_addr);
    constexpr uint32_t kGlobalUnicast = 0x20000000;
    return HasPrefix(value, kGlobalUnicast, 3) &&
           std::none_of(std::begin(kSpecial6), std::end(kSpecial6), [&](const Range6& range) {
             return HasPrefix(value, BigEndian(range.first), range.bits);
           });
  }
  return false;
}

}  // namespace lapidary
