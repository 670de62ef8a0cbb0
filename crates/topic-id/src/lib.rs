//! The id that Kafka gives a topic: one that is deleted and made anew has another.
//!
//! librdkafka tells it and the rdkafka crate doesn't, so this is the one place that calls librdkafka
//! itself, apart from the program, in which nothing is unsafe.

#![cfg(feature = "kafka")]

use std::{ffi::CString, ptr, time::Duration};

use rdkafka::{
    bindings::{
        RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT, rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new,
        rd_kafka_AdminOptions_set_request_timeout, rd_kafka_AdminOptions_t, rd_kafka_DescribeTopics,
        rd_kafka_DescribeTopics_result_topics, rd_kafka_TopicCollection_destroy,
        rd_kafka_TopicCollection_of_topic_names, rd_kafka_TopicCollection_t, rd_kafka_TopicDescription_error,
        rd_kafka_TopicDescription_topic_id, rd_kafka_Uuid_least_significant_bits,
        rd_kafka_Uuid_most_significant_bits, rd_kafka_admin_op_t, rd_kafka_error_code,
        rd_kafka_event_DescribeTopics_result, rd_kafka_event_destroy, rd_kafka_event_error, rd_kafka_event_t,
        rd_kafka_event_type, rd_kafka_queue_destroy, rd_kafka_queue_new, rd_kafka_queue_poll,
        rd_kafka_queue_t, rd_kafka_resp_err_t,
    },
    client::{Client, ClientContext},
    error::RDKafkaErrorCode,
};

/// Ends what librdkafka made.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by librdkafka for us, of the type that this function ends, and ended once.
        unsafe { self.1(self.0) }
    }
}

impl<T> Owned<T> {
    fn new(made: *mut T, end: unsafe extern "C" fn(*mut T)) -> Result<Self, RDKafkaErrorCode> {
        if made.is_null() { Err(RDKafkaErrorCode::Fail) } else { Ok(Self(made, end)) }
    }
}

/// Asks the brokers for the id of a topic. 0 is told by brokers that give none. Blocks.
///
/// # Errors
/// No broker answered in time, or it says why not: there may be no such topic.
pub fn topic_id<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    within: Duration,
) -> Result<u128, RDKafkaErrorCode> {
    let millis = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    let name = CString::new(topic).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
    let mut names = [name.as_ptr()];
    let native = client.native_ptr();

    // SAFETY: the name outlives the call, which copies it.
    let topics = unsafe { rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()) };
    let topics: Owned<rd_kafka_TopicCollection_t> = Owned::new(topics, rd_kafka_TopicCollection_destroy)?;
    // SAFETY: `client` is borrowed, so its native one is there until the end of this function.
    let queue = unsafe { rd_kafka_queue_new(native) };
    let queue: Owned<rd_kafka_queue_t> = Owned::new(queue, rd_kafka_queue_destroy)?;
    // SAFETY: as above.
    let options =
        unsafe { rd_kafka_AdminOptions_new(native, rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS) };
    let options: Owned<rd_kafka_AdminOptions_t> = Owned::new(options, rd_kafka_AdminOptions_destroy)?;
    // SAFETY: the options are ours; without a place for its words an error is told by its code alone.
    let set = unsafe { rd_kafka_AdminOptions_set_request_timeout(options.0, millis, ptr::null_mut(), 0) };
    known(set)?;
    // SAFETY: everything handed over is alive, and copied by the call.
    unsafe { rd_kafka_DescribeTopics(native, topics.0, options.0, queue.0) };
    // SAFETY: the queue is ours. An answer that comes after this gave up goes with the queue.
    let event = unsafe { rd_kafka_queue_poll(queue.0, millis) };
    if event.is_null() {
        return Err(RDKafkaErrorCode::OperationTimedOut);
    }
    let event: Owned<rd_kafka_event_t> = Owned::new(event, rd_kafka_event_destroy)?;
    // SAFETY: the event is ours and alive until the end of this function, and so is all that is read of it.
    unsafe {
        known(rd_kafka_event_error(event.0))?;
        if rd_kafka_event_type(event.0) != RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT {
            return Err(RDKafkaErrorCode::Fail);
        }
        let mut count = 0;
        let described = rd_kafka_DescribeTopics_result_topics(
            rd_kafka_event_DescribeTopics_result(event.0),
            &raw mut count,
        );
        if described.is_null() || count == 0 {
            return Err(RDKafkaErrorCode::UnknownTopicOrPartition);
        }
        let error = rd_kafka_TopicDescription_error(*described);
        if !error.is_null() {
            known(rd_kafka_error_code(error))?;
        }
        let id = rd_kafka_TopicDescription_topic_id(*described);
        if id.is_null() {
            return Ok(0);
        }
        let high = u128::from(rd_kafka_Uuid_most_significant_bits(id).cast_unsigned());
        let low = u128::from(rd_kafka_Uuid_least_significant_bits(id).cast_unsigned());
        Ok((high << 64) | low)
    }
}

fn known(error: rd_kafka_resp_err_t) -> Result<(), RDKafkaErrorCode> {
    match RDKafkaErrorCode::from(error) {
        RDKafkaErrorCode::NoError => Ok(()),
        error => Err(error),
    }
}
