#include "server/public_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

namespace lapidary {
namespace {

bool IsPublic(const std::string& text) {
  sockaddr_storage storage{};
  if (text.find(':') == std::string::npos) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &v4.sin_addr), 1) << text;
    std::memcpy(&storage, &v4, sizeof(v4));
  } else {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1) << text;
    std::memcpy(&storage, &v6, sizeof(v6));
  }
  return IsPublicAddress(reinterpret_cast<const sockaddr&>(storage));
}

TEST(PublicAddressTest, AddressesOfTheInternetArePublic) {
  for (const char* address :
       {"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
        "128.0.0.0", "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.167.255.255",
        "192.169.0.0", "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "2001:200::1"}) {
    EXPECT_TRUE(IsPublic(address)) << address;
  }
}

TEST(PublicAddressTest, AddressesOfThisMachineAndItsNetworksAreNot) {
  for (const char* address :
       {"0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.255", "169.254.169.254",
        "172.16.0.1", "172.31.255.255", "192.168.1.1", "198.18.0.1", "224.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "ff02::1"}) {
    EXPECT_FALSE(IsPublic(address)) << address;
  }
}

TEST(PublicAddressTest, AnIPv4AddressInsideAnotherIsNot) {
  for (const char* address : {"::ffff:127.0.0.1", "::ffff:1.1.1.1", "::127.0.0.1",
                              "64:ff9b::7f00:1", "2002:7f00:1::1", "2001:0:1::1"}) {
    EXPECT_FALSE(IsPublic(address)) << address;
  }
}

TEST(PublicAddressTest, AnotherKindOfAddressIsNot) {
  sockaddr address{};
  address.sa_family = AF_UNIX;
  EXPECT_FALSE(IsPublicAddress(address));
}

}  // namespace
}  // namespace lapidary
