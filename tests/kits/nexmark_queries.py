"""The shapes of Nexmark's queries 0 to 9 over tables; windows of time are arithmetic on the time."""

QUERIES = {
    "q0": "SELECT auction, bidder, price, ts FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, ts FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 7 = 0",
    # persons of three states who sell in a category
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    # the average closing price of a category
    "q4": """SELECT category, AVG(final) AS average FROM (
            SELECT a.id, a.category, MAX(b.price) AS final
            FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
            GROUP BY a.id, a.category) AS closed
        GROUP BY category""",
    # the auctions with the most bids of each window of 250 seconds that begins every 50
    "q5": """SELECT starts, auction, num FROM (
            SELECT starts, auction, num, RANK() OVER (PARTITION BY starts ORDER BY num DESC) AS place FROM (
                SELECT (b.ts DIV 50 - h.k) * 50 AS starts, b.auction, COUNT(*) AS num
                FROM bid b CROSS JOIN hop h
                GROUP BY (b.ts DIV 50 - h.k) * 50, b.auction) AS counted) AS placed
        WHERE place = 1""",
    # the average price of a seller's last ten auctions
    "q6": """WITH won AS (
            SELECT a.id, a.seller, a.expires, MAX(b.price) AS final
            FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
            GROUP BY a.id, a.seller, a.expires),
        numbered AS (
            SELECT seller, final, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY expires DESC, id) AS n FROM won)
        SELECT seller, AVG(final) AS average FROM numbered WHERE n <= 10 GROUP BY seller""",
    # the highest bids of each minute
    "q7": """SELECT b.auction, b.bidder, b.price, m.minute FROM bid b JOIN (
            SELECT date_trunc('MINUTE', at) AS minute, MAX(price) AS price FROM bid GROUP BY date_trunc('MINUTE', at)
        ) AS m ON b.price = m.price AND date_trunc('MINUTE', b.at) = m.minute""",
    # persons who opened an auction in the window of 500 seconds in which they came
    "q8": """SELECT p.id, p.name, p.ts DIV 500 AS w FROM person p JOIN (
            SELECT DISTINCT seller, ts DIV 500 AS w FROM auction) AS a ON p.id = a.seller AND p.ts DIV 500 = a.w""",
    # the winning bid of each auction
    "q9": """SELECT id, item, seller, bidder, price, ts FROM (
            SELECT a.id, a.item, a.seller, b.bidder, b.price, b.ts,
                ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
            FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires) AS ranked
        WHERE place = 1""",
}
