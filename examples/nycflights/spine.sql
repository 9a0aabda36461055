-- One row per flight: its keys, the instant of its departure, what is known of
-- the schedule (local time, as year, month, day, hour and minute are), and the
-- label. FROM_DATE and TO_DATE are filled in by the caller.
SELECT origin, tailnum, carrier,
       time_hour + to_minutes(minute) AS departs,
       CAST(hour * 60 + minute AS DOUBLE) AS minute_of_day,
       CAST(isodow(make_date(year, month, day)) AS DOUBLE) AS weekday,
       CAST(distance AS DOUBLE) AS distance,
       arr_delay > 15 AS late
FROM flights
WHERE arr_delay IS NOT NULL AND tailnum IS NOT NULL
  AND make_date(year, month, day) >= DATE 'FROM_DATE' AND make_date(year, month, day) < DATE 'TO_DATE'
