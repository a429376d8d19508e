#include "server/leased_body.h"

#include <gtest/gtest.h>

#include <boost/beast/http/fields.hpp>

namespace lapidary {
namespace {

namespace http = boost::beast::http;

TEST(LeasedBody, HoldsNoMoreThanItsLeaseHasTaken) {
  constexpr size_t kBudget = 100'000;
  constexpr size_t kLength = 3000;
  for (const size_t piece : {1, 700, 1000, 3000}) {
    const auto budget = std::make_shared<ByteBudget>(kBudget);
    http::request_header<http::fields> header;
    LeasedBody::value_type body{.bytes = {}, .lease = std::make_shared<ByteLease>(budget)};
    LeasedBody::reader reader(header, body);
    boost::beast::error_code error;
    reader.init(kLength, error);
    const std::string bytes(piece, 'x');
    for (size_t at = 0; at < kLength; at += piece) {
      const size_t count = std::min(piece, kLength - at);
      ASSERT_EQ(reader.put(boost::asio::const_buffer(bytes.data(), count), error), count);
      ASSERT_FALSE(error);
      // An empty string holds some bytes itself.
      EXPECT_FALSE(
          budget->HasRoom(kBudget - body.bytes.capacity() + std::string().capacity() + 1, 0));
    }
    EXPECT_EQ(body.bytes, std::string(kLength, 'x'));
    EXPECT_LE(body.bytes.capacity(), kLength) << "in pieces of " << piece;
  }
}

TEST(LeasedBody, SaysWhatItCouldNotHave) {
  http::request_header<http::fields> header;
  const auto budget = std::make_shared<ByteBudget>(1000);
  LeasedBody::value_type body{.bytes = {}, .lease = std::make_shared<ByteLease>(budget)};
  LeasedBody::reader reader(header, body);
  boost::beast::error_code error;
  reader.init(boost::none, error);
  const std::string bytes(2000, 'x');
  EXPECT_EQ(reader.put(boost::asio::const_buffer(bytes.data(), bytes.size()), error), 0u);
  EXPECT_EQ(error, boost::system::errc::not_enough_memory);
  EXPECT_EQ(body.lease->Refusal(body.num_refused).status, 413);
}

}  // namespace
}  // namespace lapidary
