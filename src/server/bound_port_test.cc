#include "server/bound_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lapidary {
namespace {

using testing::HasSubstr;

TEST(BoundPort, APortIsTakenWhileItIsListenedOn) {
  auto first = BoundPort::Bind("127.0.0.1", 0);
  ASSERT_TRUE(first.ok());
  const int port = (*first)->port();
  EXPECT_GT(port, 0);
  EXPECT_TRUE((*first)->is_loopback());
  const int socket = (*first)->Release();
  ASSERT_EQ(listen(socket, 1), 0);
  const auto second = BoundPort::Bind("127.0.0.1", port);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("Address already in use; --port names another"));
  close(socket);
  EXPECT_TRUE(BoundPort::Bind("127.0.0.1", port).ok());
}

TEST(BoundPort, HostsThatAreNotOfThisMachineAreRefused) {
  EXPECT_THAT(BoundPort::Bind("192.0.2.1", 0).error().message,
              HasSubstr("--host must be an address of this machine"));
  EXPECT_THAT(BoundPort::Bind("no.such.host.invalid", 0).error().message, HasSubstr("--host no."));
}

}  // namespace
}  // namespace lapidary
