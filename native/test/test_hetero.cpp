// The link and the host service: order, ends, forks, errors; plan against a slow one.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "link.hpp"
#include "plan.hpp"
#include "service.hpp"
#include "test/check.hpp"

using namespace headrace;

namespace {

template <class Error, class Fn>
bool throws(Fn&& fn) {
    try {
        fn();
    } catch (const Error&) {
        return true;
    }
    return false;
}

std::byte* bytes(std::vector<std::uint32_t>& v) { return reinterpret_cast<std::byte*>(v.data()); }

// Rows of one word, expert e holding e + 1.
struct Words {
    std::vector<std::uint32_t> words;
    std::shared_ptr<const RowSpans> spans;

    explicit Words(std::uint32_t experts) : words(experts) {
        auto made = std::make_shared<RowSpans>();
        for (std::uint32_t e = 0; e < experts; ++e) {
            words[e] = e + 1;
            made->sources.push_back(reinterpret_cast<const std::byte*>(&words[e]));
        }
        made->nbytes = {4};
        made->offsets = {0};
        made->check();
        spans = made;
    }
};

// More rows than the queue holds, again and again, with numbers that change after each call.
void rows_in_order() {
    constexpr int kRows = 9000;
    const Words words(kRows);
    Link link;
    std::vector<std::int32_t> experts(kRows), slots(kRows);
    std::vector<std::uint32_t> slab(kRows);
    std::mt19937 random(5);
    for (int call = 0; call < 20; ++call) {
        std::vector<std::uint32_t> expected = slab;
        const std::int32_t count = call % 4 == 3 ? 0 : 1 + static_cast<int>(random() % kRows);
        std::int32_t seen = count;
        for (int i = 0; i < count; ++i) {
            experts[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random() % kRows);
            slots[static_cast<std::size_t>(i)] = i;
            expected[static_cast<std::size_t>(i)] =
                static_cast<std::uint32_t>(experts[static_cast<std::size_t>(i)]) + 1;
        }
        link.copy_rows(words.spans, {experts.data(), slots.data(), &seen, bytes(slab), 4, false});
        std::fill(experts.begin(), experts.end(), 1);  // what the call read it has read
        seen = 7;
        link.wait();
        CHECK(slab == expected, "call %d", call);
    }
    const auto seen = link.observations();
    CHECK(seen.size() == 20, "%zu", seen.size());
    CHECK(seen[3].first == 0 && seen[3].second == 0);
}

void marks() {
    Link link;
    std::vector<std::uint32_t> words(1000);
    for (std::uint32_t turn = 1; turn < 200; ++turn) {
        std::vector<std::uint64_t> given;
        std::vector<std::uint32_t> source(words.size(), turn);
        for (std::size_t i = 0; i < words.size(); ++i) {
            link.copy(bytes(words) + 4 * i, bytes(source) + 4 * i, 4);
            given.push_back(link.mark());
        }
        const std::size_t some = turn * 37 % words.size();
        link.wait_for(given[some]);
        for (std::size_t i = 0; i <= some; ++i) CHECK(words[i] == turn);
        link.wait();
        if (turn % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(throws<std::invalid_argument>([&] { link.wait_for(link.mark() + 1); }));
}

// What is queued is finished by close, however slow the link.
void closing() {
    std::vector<std::uint32_t> to(1 << 20), from(1 << 20, 3);
    for (int round = 0; round < 3; ++round) {
        std::fill(to.begin(), to.end(), 0);
        Link link(1.0);
        for (int part = 0; part < 4; ++part)
            link.copy(bytes(to) + (part << 20), bytes(from), 1 << 20);
        if (round == 1) link.set_rate(1e9);
        link.close();
        link.close();
        CHECK(to == from);
        CHECK(throws<std::runtime_error>([&] { link.copy(bytes(to), bytes(from), 4); }));
        link.wait();
    }
    std::vector<std::unique_ptr<Link>> idle;
    for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<Link>());
}

// Float32 experts of any weights.
struct Bank {
    static constexpr int kHidden = 24, kWidth = 40;
    std::vector<float> weights;
    ExpertLayer layer;

    explicit Bank(int experts) {
        const std::size_t matrix = kHidden * kWidth;
        weights.resize(matrix * 3 * static_cast<std::size_t>(experts));
        std::mt19937 random(2);
        for (float& w : weights) w = static_cast<float>(random() % 2001) * 1e-3f - 1.0f;
        layer.hidden = kHidden;
        layer.width = kWidth;
        for (std::size_t e = 0; e < static_cast<std::size_t>(experts); ++e) {
            const auto* at = reinterpret_cast<const std::byte*>(&weights[3 * e * matrix]);
            layer.gate.push_back(at);
            layer.up.push_back(at + 4 * matrix);
            layer.down.push_back(at + 8 * matrix);
        }
        layer.gate_stride = layer.up_stride = 4 * kHidden;
        layer.down_stride = 4 * kWidth;
        layer.check();
    }
};

void service(int threads, bool rescue) {
    const Bank bank(5);
    Pool ours(2, true, "", rescue), theirs(threads, true, "", rescue);
    HostService host(theirs);
    std::mt19937 random(7);
    constexpr int kTopK = 3;
    for (int turn = 0; turn < 150; ++turn) {
        const int tokens = turn % 10 == 0 ? 20 : 1 + turn % 2;
        const auto n = static_cast<std::size_t>(tokens * kTopK);
        std::vector<float> x(static_cast<std::size_t>(tokens * Bank::kHidden));
        for (float& v : x) v = static_cast<float>(random() % 100) * 0.02f - 1.0f;
        std::vector<std::int32_t> ids(n), here(n), there(n);
        std::vector<float> weights(n, 0.5f), parts(n * Bank::kHidden);
        for (std::size_t i = 0; i < n; ++i) {
            ids[i] = static_cast<std::int32_t>(random() % 6) - 1;
            const bool hit = random() % 2 == 0 || turn % 7 == 0;
            here[i] = hit ? ids[i] : -1;
            there[i] = hit ? -1 : ids[i];
        }
        if (turn % 3 != 0) host.alert();
        if (turn % 40 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        host.ring({x.data(), tokens, there.data(), kTopK, &bank.layer, parts.data(), true});
        experts_parts(ours, x.data(), tokens, here.data(), kTopK, bank.layer, parts.data(), true);
        host.wait();
        std::vector<float> y(x.size(), -1.0f), expected(x.size(), -2.0f);
        combine(ours, parts.data(), tokens, kTopK, Bank::kHidden, ids.data(), weights.data(),
                y.data());
        experts(ours, x.data(), tokens, ids.data(), weights.data(), kTopK, bank.layer,
                expected.data(), true);
        CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0, "%d", turn);
    }
    CHECK(host.observations().size() == 150);

    const std::int32_t wrong = 5;
    std::vector<float> x(Bank::kHidden), parts(Bank::kHidden);
    host.ring({x.data(), 1, &wrong, 1, &bank.layer, parts.data(), true});
    CHECK(throws<std::invalid_argument>([&] { host.wait(); }));
    host.wait();
    const std::int32_t right = 4;
    host.ring({x.data(), 1, &right, 1, &bank.layer, parts.data(), true});
    host.close();
    host.close();
    host.wait();
    CHECK(throws<std::runtime_error>([&] { host.alert(); }));
    ours.quiesce();
    theirs.quiesce();
}

void forked_child_ends() {
#if !defined(__SANITIZE_THREAD__)
    Pool pool(2);
    auto link = std::make_unique<Link>();
    auto host = std::make_unique<HostService>(pool);
    const pid_t child = fork();
    if (child == 0) {
        std::byte a{1}, b{2};
        const bool told = throws<std::runtime_error>([&] { link->copy(&a, &b, 1); }) &&
                          throws<std::runtime_error>([&] { host->alert(); });
        link->wait();
        host->wait();
        link.reset();
        host.reset();
        _exit(told ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    std::byte a{1}, b{2};
    link->copy(&a, &b, 1);
    link->wait();
    CHECK(a == b);
#endif
}

// Full caches of all sorts of values: the victims are the first of all that are sorted.
void victims_are_the_least() {
    constexpr int kExperts = 16, kRows = 400, kSlots = 300;
    Pool pool(1);
    std::mt19937_64 random(11);
    for (int round = 0; round < 400; ++round) {
        std::vector<std::int32_t> row_of(kSlots), slot_of(kRows, -1), ids;
        std::vector<std::int64_t> sums(2 * kRows), value(kRows), clock{round};
        for (std::int32_t s = 0; s < kSlots; ++s) {
            row_of[static_cast<std::size_t>(s)] = s + 100;
            slot_of[static_cast<std::size_t>(s + 100)] = s;
        }
        const int bits = round % 63;
        for (std::int64_t& v : value) v = static_cast<std::int64_t>(random() >> 1 >> (62 - bits));
        for (std::int32_t e = 0; e < kExperts; ++e)
            if (random() % 2 == 0) ids.push_back(e);
        const auto wanted = static_cast<std::int32_t>(ids.size());
        std::vector<std::int32_t> quota(17), slot_ids(16), host_ids(16), who(16), where(16),
            counts(4);
        for (std::int32_t m = 0; m < 17; ++m) quota[static_cast<std::size_t>(m)] = m;
        std::vector<std::pair<std::int64_t, std::int32_t>> order;
        for (const std::int32_t row : row_of)
            order.emplace_back(value[static_cast<std::size_t>(row)], row);
        std::sort(order.begin(), order.end());
        const PlanCall call{{ids.data(), wanted, 1},
                            {slot_of.data(), kRows, row_of.data(), kSlots, sums.data(),
                             value.data(), clock.data(), true, 0, kExperts},
                            quota.data(),
                            17,
                            slot_ids.data(),
                            host_ids.data(),
                            who.data(),
                            where.data(),
                            counts.data(),
                            0};
        plan(pool, call);
        CHECK(counts[2] == wanted);
        for (std::size_t i = 0; i < ids.size(); ++i)
            CHECK(where[i] + 100 == order[i].second, "round %d fill %zu", round, i);
    }
}

}  // namespace

int main() {
    rows_in_order();
    marks();
    closing();
    for (const int threads : {1, 3}) service(threads, threads > 1);
    forked_child_ends();
    victims_are_the_least();
    return failures == 0 ? 0 : 1;
}
