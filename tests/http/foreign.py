"""What strangers write into headers, queries and paths."""

from hypothesis import strategies as st

NUMBERS = ("0", "1", "-1", "+1", "1_0", " 1", "1e3", "0x1", "nan", "²", "٣", "", "9" * 19, "9" * 5000)
FOREIGN = (
    st.sampled_from([number.encode("latin-1", "ignore") for number in NUMBERS])
    | st.sampled_from([number.encode() for number in NUMBERS])
    | st.sampled_from([b"Bearer ", b"[::1", b"a=1&a=%ff&%00", b"%2e%2e%2f", b"null", b"style=concat&style=\xff"])
    | st.binary(max_size=12).filter(lambda value: b"\n" not in value and b"\r" not in value and b"\0" not in value)
)
HEADERS = (
    *("authorization", "x-api-key", "host", "origin", "content-type", "idempotency-key", "last-event-id"),
    *("x-stainless-retry-count", "x-ludus-session", "content-length", "transfer-encoding", "accept"),
)
